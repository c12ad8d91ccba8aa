"""Strategy ``wgmma``: warpgroups multiply tiles on tensor cores of sm_90a (``wgmma``), which TMA brings."""
