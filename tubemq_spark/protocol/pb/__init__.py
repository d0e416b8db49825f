"""TubeMQ's messages: the .proto files and the code generated from them (make protos)."""
