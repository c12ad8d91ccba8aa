"""Speed of instances on this machine's processor, and its bounds."""
