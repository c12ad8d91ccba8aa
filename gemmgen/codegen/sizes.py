"""Constants of the sizes that a kernel is made for, in its source."""

from __future__ import annotations

import re

from gemmgen.kernels.baking import constants

_BODY = re.compile(r"^extern \"C\" __global__ .*?\)\n\{\n", re.MULTILINE | re.DOTALL)


def with_sizes(text: str, plan: object) -> str:
    """A kernel's text with a constant in the place of each parameter that its sizes replace. A kernel that changes a parameter on its
    way, such as the depth that is left to it, starts with a variable of that value."""
    sizes = constants(plan)
    if not sizes:
        return text
    lines = ["// Sizes that this kernel is made for."]
    lines += [f"constexpr {kind} {name} = {value};  // {meaning}" for kind, name, value, meaning in sizes]
    changed = [(kind, name) for kind, name, _, _ in sizes if re.search(rf"^\s+{name} [-+*/%]?= ", text, re.MULTILINE)]
    variables = "".join(f"    {kind} {name} = ::{name};\n" for kind, name in changed)
    return "\n".join([*lines, "", ""]) + _BODY.sub(lambda match: match[0] + variables, text)
