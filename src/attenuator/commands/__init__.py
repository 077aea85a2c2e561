"""The commands of `attenuator` that are neither export nor serve: one file a command, and its parts."""
