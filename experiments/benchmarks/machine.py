"""The machine and the code of a measurement."""

import os
import pathlib
import platform
import re
import time

from posjax.environment import commit


def about() -> dict[str, object]:
    """Returns processor, memory, commit and date, for records."""
    total, info = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), {}
    if (path := pathlib.Path("/proc/cpuinfo")).exists():
        info = dict(re.findall(r"^(.*\S)\s*: (.*)$", path.read_text().split("\n\n")[0], re.MULTILINE))
    name = info.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in info:  # says more where the machine is virtual
        name += f" (family {info['cpu family']}, model {info['model']})"
    return {
        "processor": name,
        "cpus": os.cpu_count(),
        "memory": f"{total / 2**30:.0f} GiB",
        "platform": f"{platform.system()} {platform.machine()}",
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
