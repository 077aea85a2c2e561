"""`attenuator bench`: what a running service answers under load, over rates and knob values."""
