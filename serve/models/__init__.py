"""The models that are loaded: catalog, loading and replacing, tokenizing, warm-up."""
