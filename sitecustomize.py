# SPDX-License-Identifier: Apache-2.0
"""For those who activate by putting the checkout on PYTHONPATH: arms the patches, then runs the sitecustomize
this one hides.

The checkout is taken off sys.path: the package is imported by then and finds its parts by itself, while a
top-level module named ``kernels`` would be taken for the Hugging Face package of that name. Child processes
come here through PYTHONPATH as well.
"""

import os
import sys


def _leave_path(checkout: str) -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != checkout]


def _run_hidden() -> None:
    """Import the next sitecustomize under its own name, as if this file were not there."""
    this = sys.modules.pop(__name__, None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if this is not None:
            sys.modules[__name__] = this


def _main() -> None:
    import ascend_specpatch

    ascend_specpatch.arm()
    _leave_path(os.path.dirname(os.path.realpath(__file__)))
    _run_hidden()


_main()
