"""What a cluster can be asked for: directly, or through gateways."""
