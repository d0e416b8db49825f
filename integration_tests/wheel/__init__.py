"""What a user gets: the distributions in fresh environments, on one machine, a cluster, by Connect."""
