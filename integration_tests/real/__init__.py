"""A real Apache TubeMQ for the tests: its servers, its Java client, its load generators.

Nothing here knows the product under test. `artifacts` fetches the published distribution, `cluster` runs a
master and brokers from it, `java_client` drives the Java client, `load` runs the load generators, and
`fixtures` offers all of that to pytest.
"""
