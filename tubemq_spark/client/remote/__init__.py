"""TubeMQ through gateways; imported only by who names one, since it needs gRPC."""
