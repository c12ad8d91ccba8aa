"""The page of choices: kernels that gemmgen chooses for a grid of problems, with their numbers and their specs.

python docs/playground.py        computes docs/recorded/choices.json, which the site embeds; takes some seconds for each problem
"""

from __future__ import annotations

import json
import sys
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "recorded" / "choices.json"
SHAPES = ("16,4096,4096", "128,4096,4096", "512,512,512", "1024,1024,1024", "4096,4096,4096", "4096,11008,4096")
TYPES = {"bfloat16": "bf16", "float32": ""}
EPILOGUES = {"none": "", "bias, GELU": "bias,gelu"}
DEVICES = ("H200", "A100", "L40S")
STAGES = range(1, 9)


def problem_text(shape: str, kind: str, epilogue: str) -> str:
    """The problem of one place of the grid, B stored n x k."""
    return ",".join(filter(None, (f"gemm:{shape},nt", TYPES[kind], EPILOGUES[epilogue])))


def entry(problem: str, device_name: str) -> dict[str, Any]:
    """The chosen kernel, the next ones, its numbers, and the effect of another number of stages."""
    import gemmgen
    from gemmgen.api import choose
    from gemmgen.cli.problem import spec_text
    from gemmgen.core.errors import GemmgenError
    from gemmgen.perf.analysis.roofline import roofline
    from gemmgen.perf.cost_model import cost_model_of

    chosen = choose(problem, device_name)
    choice, plan = chosen.choice, chosen.plan
    assert choice is not None
    roofs = roofline(cost_model_of("gemm").cost(plan, chosen.dimensions), choice.device)
    launches = plan.sequence.resolve(chosen.dimensions)
    main = max(launches, key=lambda launch: prod(launch.grid) * prod(launch.block))
    fields = plan.spec.model_dump(mode="json")
    stages = {}
    for count in STAGES if "stages" in fields["mainloop"] else ():
        try:
            other = gemmgen.plan({**fields, "mainloop": {**fields["mainloop"], "stages": count}})
            stages[count] = (
                f"{max(launch.shared_bytes for launch in other.sequence.resolve(chosen.dimensions)):,} bytes of dynamic shared memory"
            )
        except GemmgenError as error:
            stages[count] = " ".join(str(error).split("\n")[-1].split()).lstrip("- ")
    return {
        "kernel": choice.chosen.candidate.label,
        "time_us": round(choice.chosen.seconds * 1e6, 2),
        "basis": choice.chosen.source,
        "others": [[one.candidate.label, round(one.seconds * 1e6, 2)] for one in choice.options[1:4]],
        "launches": len(launches),
        "grid": list(main.grid),
        "block": prod(main.block),
        "shared_bytes": main.shared_bytes,
        "blocks_per_sm": round(prod(main.grid) / choice.device.sm_count, 2),
        "operations": roofs.cost.operations,
        "bytes": roofs.cost.bytes,
        "arithmetic_us": round(roofs.compute_seconds * 1e6, 2),
        "memory_us": round(roofs.cost.bytes / roofs.memory_roof.value * 1e6, 2) if roofs.memory_roof else None,
        "stages": fields["mainloop"].get("stages"),
        "other_stages": stages,
        "spec": spec_text(chosen),
    }


def record() -> None:
    """Computes all places of the grid that the file lacks, and writes it after each."""
    found = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    for device, shape, kind, epilogue in product(DEVICES, SHAPES, TYPES, EPILOGUES):
        key = f"{device}|{shape}|{kind}|{epilogue}"
        if key not in found:
            found[key] = entry(problem_text(shape, kind, epilogue), device)
            RECORDED.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n")
            print(key, found[key]["kernel"], flush=True)


def page() -> str:
    """The page, with all data, for a browser without a server."""
    found = json.loads(RECORDED.read_text())
    axes = zip(*(key.split("|") for key in found), strict=True)
    names = ("device", "m, n, k", "type", "epilogue")
    options = [
        f"<label>{name} <select>{''.join(f'<option>{value}</option>' for value in dict.fromkeys(values))}</select></label>"
        for name, values in zip(names, axes, strict=True)
    ]
    data = json.dumps(found, ensure_ascii=False).replace("</", "<\\/")
    return _PAGE.replace("OPTIONS", "\n".join(options)).replace("DATA", data)


_PAGE = """# Choose a kernel

Select a device and a product C = epilogue(A Bᵀ). The page shows the kernel that gemmgen chooses, its numbers, the roofs of the device, and
the spec to copy. The times are predictions; `gemmgen bench` measures them. Every place of this page equals
`gemmgen render --problem gemm:M,N,K,nt,TYPE,EPILOGUE --device DEVICE --spec FILE`.

<div id="choices">
OPTIONS
<p id="stages-row"><label>stages <select id="stages"></select></label> <span id="effect"></span></p>
<table><tbody id="numbers"></tbody></table>
<p><button type="button" id="copy">Copy the spec</button></p>
<pre><code id="spec"></code></pre>
</div>
<script id="choices-data" type="application/json">DATA</script>
<script>
(() => {
  const data = JSON.parse(document.getElementById("choices-data").textContent);
  const selects = [...document.querySelectorAll("#choices > label select, #choices > p > label select:not(#stages)")];
  const stages = document.getElementById("stages"), effect = document.getElementById("effect");
  const number = value => value.toLocaleString("en");
  const time = value => `${number(value)} µs`;
  let entry;
  function showStages() {
    effect.textContent = entry.other_stages[stages.value] ?? "";
  }
  function show() {
    entry = data[selects.map(select => select.value).join("|")];
    const body = document.getElementById("numbers");
    body.replaceChildren();
    document.getElementById("stages-row").hidden = !entry || entry.stages === null;
    document.getElementById("spec").textContent = entry ? entry.spec : "";
    if (!entry) { body.insertRow().insertCell().textContent = "No kernel is recorded for this choice."; return; }
    const bound = entry.memory_us === null || entry.arithmetic_us >= entry.memory_us ? "arithmetic" : "memory";
    const rows = [
      ["kernel", entry.kernel], ["predicted time", `${time(entry.time_us)} (${entry.basis})`],
      ["next best", entry.others.map(([name, us]) => `${name}: ${time(us)}`).join("; ") || "none"],
      ["launches", number(entry.launches)],
      ["main launch", `${entry.grid.join(" x ")} blocks of ${entry.block} threads`],
      ["dynamic shared memory", `${number(entry.shared_bytes)} bytes a block`],
      ["blocks per SM", number(entry.blocks_per_sm)],
      ["operations and bytes", `${number(entry.operations)} and ${number(entry.bytes)}`],
      ["arithmetic roof", time(entry.arithmetic_us)], ["memory roof", entry.memory_us === null ? "unknown" : time(entry.memory_us)],
      ["bound by", bound],
    ];
    for (const [name, text] of rows) {
      const row = body.insertRow();
      row.insertCell().textContent = name;
      row.insertCell().textContent = text;
    }
    stages.replaceChildren(...Object.keys(entry.other_stages).map(value => new Option(value, value)));
    stages.value = entry.stages;
    showStages();
  }
  for (const select of selects) select.addEventListener("change", show);
  stages.addEventListener("change", showStages);
  document.getElementById("copy").addEventListener("click", async event => {
    await navigator.clipboard.writeText(entry ? entry.spec : "");
    event.target.textContent = "Copied";
  });
  show();
})();
</script>
"""


if __name__ == "__main__":
    record()
    sys.exit(0)
