"""The service on several processes and machines, as an application of Ray Serve (the extra `ray`).

A front takes requests, predicts what each costs and passes it, as it came, to the replica with the least predicted work
before it. A replica answers with the very application that `attenuator serve` runs, so that routes, limits and errors
are the same. `deploy/ray/` has configurations, `docs/deploy-ray.md` explains them.
"""
