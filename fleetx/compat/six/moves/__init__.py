"""``six.moves``: modules and functions that have other names on Python 2."""

import builtins
import configparser
import functools
import importlib
import io
import itertools
import os
import pickle as cPickle
import queue
import sys
import urllib.error
import urllib.parse
import urllib.request
from urllib.parse import urlparse

__all__ = ["cPickle", "configparser", "queue", "urllib", "urlparse"]

range = xrange = builtins.range
zip, map, filter, input = builtins.zip, builtins.map, builtins.filter, builtins.input
reduce = functools.reduce
zip_longest, filterfalse = itertools.zip_longest, itertools.filterfalse
StringIO, cStringIO = io.StringIO, io.StringIO
intern, getcwd, reload_module = sys.intern, os.getcwd, importlib.reload
