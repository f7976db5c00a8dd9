# SPDX-License-Identifier: Apache-2.0
"""What the mixins of this package are mixed into: a class that has the host's own functions.

It exists only once the host is loaded, so to a type checker it is anything, and at run time the mixins
stand on ``object`` until ``spec_decode.base_proposer`` puts them above it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    HostFunctions: Any
else:
    HostFunctions = object
