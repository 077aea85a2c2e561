"""The command `attenuator calibrate`: runs a bundle on a user's texts, and writes what its settings are worth."""
