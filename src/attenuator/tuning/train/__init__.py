"""The command `attenuator train`: a classifier learned from labelled texts, with either attention."""
