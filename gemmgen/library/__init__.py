"""The pregenerated library: one list of specs becomes sources, certificates and a manifest, with the evidence for each."""
