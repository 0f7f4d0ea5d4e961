"""What can go wrong in kernels.

    KernelError
    ├── LayoutError         a model's KV state cannot be laid out as pages
    │   └── UnsupportedModel    its KV state is not dense attention in one group
    ├── MoveError           pages that a pool does not have, or memory that a mover cannot reach
    ├── MoverUnavailable    this machine lacks what a mover needs
    ├── DiskError           a disk tier's file cannot be made, or one transfer failed
    └── ProfileError        a link profile cannot be read, written or used here

A tree of its own, since kernels and collectors know nothing of each other; the command line knows
both roots.
"""

from __future__ import annotations


class KernelError(Exception):
    """Root of this tree. The message names the fix."""


class LayoutError(KernelError):
    """A model's KV state cannot be laid out as pages."""


class UnsupportedModel(LayoutError):
    """KV state other than dense attention in one group: no number is better than a wrong one."""


class MoveError(KernelError):
    """Pages that a pool does not have, or memory that a mover cannot reach."""


class MoverUnavailable(KernelError):
    """This machine lacks what a mover needs."""


class DiskError(KernelError):
    """A disk tier's file cannot be made, or one transfer to or from it failed."""


class ProfileError(KernelError):
    """A link profile cannot be read, written or used here."""
