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
        "slices": chosen.dimensions.get("slices"),
        "operations": roofs.cost.operations,
        "bytes": roofs.cost.bytes,
        "arithmetic_us": round(roofs.compute_seconds * 1e6, 2),
        "memory_us": round(roofs.cost.bytes / roofs.memory_roof.value * 1e6, 2) if roofs.memory_roof else None,
        "stages": fields["mainloop"].get("stages"),
        "other_stages": stages,
        "spec": spec_text(chosen),
    }


def details(found: dict[str, Any], shape: str, device_name: str) -> dict[str, Any]:
    """An entry's tile, longest launch, blocks of a wave, waves, and the model's time for each number of stages."""
    import yaml

    import gemmgen
    from gemmgen.core.errors import GemmgenError
    from gemmgen.dispatch.model import model_seconds, resident_blocks
    from gemmgen.hardware.target import device
    from gemmgen.kernels import family_of
    from gemmgen.perf.cost_model import cost_model_of

    target, fields = device(device_name), yaml.safe_load(found["spec"])
    m, n, k = map(int, shape.split(","))
    sizes = (n, m, k) if fields.get("order") == "column_major" else (m, n, k)

    def planned(spec: dict[str, Any]) -> Any:
        plan = gemmgen.plan(spec, target.architecture)
        problem = {**family_of(plan.spec).problem(plan, sizes), **({"slices": found["slices"]} if found["slices"] else {})}
        return cost_model_of("gemm").work(plan, problem), plan.sequence.resolve(problem)

    works, launches = planned(fields)
    longest = max(range(len(works)), key=lambda place: model_seconds(works[place : place + 1], target))
    main = launches[longest]
    wave = target.sm_count * resident_blocks(works[longest], target)
    seconds = {}
    for count in found["other_stages"]:
        try:
            changed = {**fields, "mainloop": {**fields["mainloop"], "stages": int(count)}}
            seconds[count] = round(model_seconds(planned(changed)[0], target) * 1e6, 2)
        except GemmgenError:
            continue
    tile = fields["mainloop"].get("tile", {})
    extents = tile.get("threadblock", tile)
    return {
        "launches": len(launches),
        "tile": " x ".join(str(extents[name]) for name in "mnk" if name in extents) or None,
        "wave": wave,
        "waves": round(prod(main.grid) / wave, 2),
        "grid": list(main.grid),
        "block": prod(main.block),
        "shared_bytes": main.shared_bytes,
        "stage_us": seconds,
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
        found[key] |= details(found[key], shape, device)
    RECORDED.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n")


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

Select a device and a product C = epilogue(A Bᵀ). The page shows the kernel that gemmgen chooses, its tile, its waves,
the roofs of the device, and the spec to copy. Another number of stages shows the shared memory that it needs and its predicted time, or the
reason against it. The times are predictions; `gemmgen bench` measures them. Every place of this page equals
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
    const us = entry.stage_us[stages.value], base = entry.stage_us[entry.stages];
    const predicted = us === undefined || !base ? "" : `; predicted time ${time(+(entry.time_us * us / base).toFixed(2))}`;
    effect.textContent = (entry.other_stages[stages.value] ?? "") + predicted;
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
      ["tile of C, and step along k", entry.tile ?? "none"],
      ["launches", number(entry.launches)],
      ["main launch", `${entry.grid.join(" x ")} blocks of ${entry.block} threads`],
      ["dynamic shared memory", `${number(entry.shared_bytes)} bytes a block`],
      ["waves", `${number(entry.waves)}, each of up to ${number(entry.wave)} resident blocks`],
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
