"""What runs on the hosts. Standard library only, Python 3.10 or newer: shipped as one zipapp."""
