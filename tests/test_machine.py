"""What a link profile says of the machine, and whose profiles are refused."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest

from kvready.kernels.errors import ProfileError
from kvready.kernels.machine import disk_of, refuse_foreign, this_machine, usable_cpus
from kvready.kernels.profile import LinkProfile, Machine, Provenance

HERE = Machine(cpu="AMD EPYC", cpus=2, operating_system="Linux", gpu="NVIDIA H200")
OPEN_MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (a@b)\n"
    "GCC version:  gcc version 13.3.0\n"
)
CLOSED_MODULE = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
)


def kernel_file(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def profile_of(machine: Machine, provenance: Provenance = Provenance.MEASURED) -> LinkProfile:
    return LinkProfile("box", provenance, machine, ())


def test_this_machine_is_described_without_its_name(tmp_path: Path) -> None:
    machine = this_machine(tmp_path)
    assert machine.cpu
    assert 1 <= machine.cpus <= (os.cpu_count() or 1)
    assert machine.operating_system.startswith("Linux ")
    assert machine.disk
    assert socket.gethostname() not in msgspec.json.encode(machine).decode()
    assert this_machine(tmp_path) == machine


def test_a_machine_whose_kernel_tells_nothing_is_described_all_the_same(tmp_path: Path) -> None:
    machine = this_machine(tmp_path, proc=tmp_path, sys=tmp_path, dev=tmp_path)
    assert machine.cpu
    assert (machine.gpu, machine.gpu_driver, machine.disk) == ("", "", "unknown")


def test_an_arm_cpu_is_named_by_implementer_and_part(tmp_path: Path) -> None:
    kernel_file(tmp_path, "cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n")
    machine = this_machine(proc=tmp_path, dev=tmp_path)
    assert machine.cpu.endswith("implementer 0x41 part 0xd4f")


@pytest.mark.parametrize(
    ("version", "driver"), [(OPEN_MODULE, "580.65.06"), (CLOSED_MODULE, "535.104.05"), ("", "")]
)
def test_gpus_and_driver_come_from_the_drivers_files(
    tmp_path: Path, version: str, driver: str
) -> None:
    kernel_file(tmp_path, "driver/nvidia/version", version)
    for place, model in (("0a", "NVIDIA H200"), ("0b", "NVIDIA H200"), ("0c", "NVIDIA L4")):
        kernel_file(
            tmp_path,
            f"driver/nvidia/gpus/0000:{place}:00.0/information",
            f"Model: \t\t {model}\nIRQ:   \t\t 17\n",
        )
    machine = this_machine(proc=tmp_path, dev=tmp_path)
    assert (machine.gpu, machine.gpu_driver) == ("NVIDIA H200, NVIDIA L4", driver)


def test_cpus_are_no_more_than_the_control_group_is_given(tmp_path: Path) -> None:
    allowed = len(os.sched_getaffinity(0))
    for text, cpus in (("max 100000", allowed), ("50000 100000", 1), ("bad", allowed)):
        kernel_file(tmp_path, "fs/cgroup/cpu.max", text + "\n")
        assert usable_cpus(tmp_path) == cpus


def test_a_disk_is_found_by_its_longest_mount_point(tmp_path: Path) -> None:
    proc, sys = tmp_path / "proc", tmp_path / "sys"
    cache = tmp_path / "a cache"
    kernel_file(
        proc,
        "self/mountinfo",
        "22 1 254:1 / / rw - ext4 /dev/vda1 rw\n"
        f"30 22 0:40 / {tmp_path} rw shared:1 - nfs4 files.example:/export rw\n"
        f"31 30 259:0 / {str(cache).replace(' ', chr(92) + '040')} rw - xfs /dev/nvme0n1 rw\n"
        "broken line\n",
    )
    kernel_file(sys, "block/nvme0n1/device/model", "Micron_7450  \n")
    (sys / "dev/block").mkdir(parents=True)
    (sys / "dev/block/259:0").symlink_to(sys / "block/nvme0n1")
    assert disk_of(cache / "kv", proc=proc, sys=sys) == "xfs on nvme0n1 (Micron_7450)"
    assert disk_of(tmp_path / "other", proc=proc, sys=sys) == "nfs4"
    assert disk_of(Path("/elsewhere"), proc=proc, sys=sys) == "ext4"


def test_a_profile_of_this_machine_and_a_published_one_are_taken() -> None:
    newer = msgspec.structs.replace(HERE, cpus=64, operating_system="Linux 9", gpu_driver="999")
    refuse_foreign(profile_of(newer), HERE, "box.json")
    elsewhere = Machine(cpu="", cpus=0, operating_system="", gpu="GH200")
    refuse_foreign(profile_of(elsewhere, Provenance.PUBLISHED), HERE, "published:gh200")


@pytest.mark.parametrize("change", [{"cpu": "Intel Xeon"}, {"gpu": "NVIDIA L4"}, {"gpu": ""}])
def test_a_profile_of_another_machine_is_refused_with_the_fix(change: dict[str, str]) -> None:
    foreign = profile_of(msgspec.structs.replace(HERE, **change))
    with pytest.raises(ProfileError, match=r"box\.json was measured on .*run `kvready calibrate`"):
        refuse_foreign(foreign, HERE, "box.json")
