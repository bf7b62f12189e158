"""The machine and the code of a measurement."""

import os
import pathlib
import platform
import time

from posjax.environment import commit


def about() -> dict[str, object]:
    """Processor, memory, commit and date, for records."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "memory": f"{total / 2**30:.0f} GiB",
        "platform": f"{platform.system()} {platform.machine()}",
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    """The processor's name by Linux, with its family and model, which say more where the machine is virtual."""
    path = pathlib.Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in path.read_text().split("\n\n")[0].splitlines() if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    name = fields.get("model name", platform.machine())
    where = f" (family {fields['cpu family']}, model {fields['model']})" if "cpu family" in fields else ""
    return name + where
