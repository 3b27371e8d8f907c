from importlib import import_module

Migration = import_module("example_project.billing.migrations.0001_initial").Migration
