"""The same requests to the embedded TubeMQ and to the Java one, and what may differ in the answers."""
