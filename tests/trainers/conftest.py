"""Tests inside of other trainers run where these are installed: `make trainers`."""

import importlib.util

collect_ignore = []
for package, file in (("swift", "test_ms_swift.py"), ("llamafactory", "test_llamafactory.py")):
    if importlib.util.find_spec(package) is None:
        collect_ignore.append(file)
