"""Instances for people: pictures and words."""
