"""Policies: what they say (model), where they come from (load), what a container may ask of them (annotations)."""
