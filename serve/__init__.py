"""The service: `attenuator serve` answers classification requests over HTTP.

A request goes routes -> schema -> tokenizer -> scheduler -> engine -> packed batch -> scores.
"""
