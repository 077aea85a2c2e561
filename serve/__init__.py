"""The service: `attenuator serve` answers classification requests over HTTP."""
