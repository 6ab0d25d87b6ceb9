"""A small engine built and run on the spot: does a backend work on this machine?"""
