"""The command ``tubemq-spark receipts verify``: is what was acknowledged still there?"""
