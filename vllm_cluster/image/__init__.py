"""The image on every host: what an archive holds, what hosts have, which layer goes to whom."""
