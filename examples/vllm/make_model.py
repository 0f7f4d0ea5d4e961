"""Write a random Llama to a folder: the models that tests and the demo serve.

`kv-heavy` has 128 KiB of keys and values per token, as Llama-3.1-8B, and next to no weights: on
a CPU its host loads take long enough to be late, which a tiny model never shows. `check` is for
comparing outputs: a tied tiny model repeats its last token and would pass with garbage in its
KV cache; this one does not. Needs torch and transformers (the engine's environment has both).
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

SEED = 7


@dataclass(frozen=True)
class Shape:
    """The numbers of a Llama, under the names its configuration uses."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    initializer_range: float
    vocab_size: int = 2048
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = False


SHAPES = {
    "kv-heavy": Shape(128, 256, 32, 8, 8, 128, 0.08),
    "check": Shape(256, 512, 4, 8, 4, 32, 0.12),
}


def make_model(name: str, folder: Path) -> None:
    """Write the named model to `folder`, whole or not at all."""
    if folder.exists():
        return
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    config = LlamaConfig(**asdict(SHAPES[name]), bos_token_id=None, eos_token_id=None)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
        model.save_pretrained(unfinished)
        Path(unfinished).rename(folder)
        folder.chmod(0o755)
        Path(unfinished).mkdir()  # for the clean-up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder; each model gets its own")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(SHAPES)}")
    options = parser.parse_args()
    for name in options.names or SHAPES:
        if name not in SHAPES:
            parser.error(f"there is no model {name!r}; choose from {', '.join(SHAPES)}")
        make_model(name, options.out / name)
        print(options.out / name)


if __name__ == "__main__":
    main()
