"""Several models in one container: each in a complete server of its own, and a front that passes requests on."""
