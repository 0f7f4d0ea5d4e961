"""The published shapes of four data sets: how long, how many, what is asked again.

Means and counts are those of the Strata paper's Table 1 (its columns are scrambled in print; they
are assigned by the number of documents and the output lengths). Spreads are not published: they
come from public samples where there are any, else they are assumed, and the workload says which.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

WORDS_TO_TOKENS = 4 / 3  # assumed, for English prose; only where a limit in tokens cuts


class ShapeName(StrEnum):
    """A data set whose shape is drawn."""

    LOOGLE = "loogle"
    NARRATIVEQA = "narrativeqa"
    REVIEWMT = "reviewmt"
    SHAREGPT = "sharegpt"


class Shape(msgspec.Struct, frozen=True):
    """One data set. Tokens; `contexts` 0: as many conversations as its queries make."""

    name: ShapeName
    mean_prompt_tokens: float
    mean_output_tokens: float
    contexts: int
    queries: int
    rounds: bool = False  # questions come one after the other's answer, and see it
    think_seconds: float = 0.0
    longest_context_tokens: int = 0  # longer documents were filtered out; 0: none were
    context_models: tuple[str, ...] = ()  # names in length_models, mixed evenly
    questions_model: str = ""
    output_model: str = ""


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            ShapeName.LOOGLE,
            mean_prompt_tokens=21_613,
            mean_output_tokens=15.6,
            contexts=105,
            queries=2_410,
            context_models=("loogle_context_longdep_qa", "loogle_context_shortdep_qa"),
            questions_model="loogle_questions",
        ),
        Shape(
            ShapeName.NARRATIVEQA,
            mean_prompt_tokens=54_797,
            mean_output_tokens=13.0,
            contexts=50,
            queries=1_461,
            longest_context_tokens=131_072,
            context_models=("narrativeqa_context",),
        ),
        Shape(
            ShapeName.REVIEWMT,
            mean_prompt_tokens=17_708,
            mean_output_tokens=208.3,
            contexts=100,
            queries=1_092,
            rounds=True,
        ),
        Shape(
            ShapeName.SHAREGPT,
            mean_prompt_tokens=680.9,
            mean_output_tokens=260.9,
            contexts=0,
            queries=200_869,
            rounds=True,
            think_seconds=60.0,
            output_model="sharegpt_output",
        ),
    )
}
