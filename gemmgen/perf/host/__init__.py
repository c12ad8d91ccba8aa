"""How fast instances are on this machine's processor, and what bounds them."""
