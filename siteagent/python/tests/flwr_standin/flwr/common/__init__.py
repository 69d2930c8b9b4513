"""What apps import from here."""

from ..app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

__all__ = ["Array", "ArrayRecord", "ConfigRecord", "Context", "Message", "MetricRecord", "RecordDict"]
