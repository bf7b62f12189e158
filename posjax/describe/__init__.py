"""One encoding: properties that must hold, what its class declares, and a worked example with numbers."""
