"""The gateway's service: its .proto file, the code generated from it (make protos), and the conversions.

They make messages of the values that cross the boundary of ``cluster``, and values of messages. Nothing here
knows gRPC: statuses are numbers, and bodies are messages of protobuf.
"""
