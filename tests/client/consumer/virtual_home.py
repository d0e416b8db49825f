"""A home of rules whose calls are made, and whose time passes, when a test says so."""


class VirtualHome:
    def __init__(self):
        self.idle = False
        self.now = 0.0
        self.calls = []
        self.timers = []

    def clock(self):
        return self.now

    def post(self, call):
        self.calls.append(call)

    def call_later(self, seconds, call):
        timer = Timer(self.now + seconds, call)
        self.timers.append(timer)
        return timer

    def settle(self):
        """Make all calls, and those that they leave."""
        while self.calls:
            self.calls.pop(0)()

    def pass_time(self, seconds):
        """Let time pass; timers that are due make their calls in their order."""
        end = self.now + seconds
        while due := [one for one in self.timers if not one.cancelled and one.at <= end]:
            first = min(due, key=lambda one: one.at)
            self.timers.remove(first)
            self.now = max(self.now, first.at)
            first.call()
            self.settle()
        self.now = end


class Timer:
    def __init__(self, at, call):
        self.at = at
        self.call = call
        self.cancelled = False

    def cancel(self):
        self.cancelled = True
