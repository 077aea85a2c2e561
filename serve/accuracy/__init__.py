"""Which knobs a request runs with: caller, ceilings, goals, floors under load."""
