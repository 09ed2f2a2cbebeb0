"""Protobuf files that a ``.proto`` may import but that no registry contains.

These are Confluent's messages and Google's common types. The compiler includes the files of
``google/protobuf``.

Each file is reduced to what decoding needs: names, numbers and types.

Source: Confluent Schema Registry 8, ``ProtobufSchema.KNOWN_DEPENDENCIES``; googleapis,
``google/type``.
"""

from __future__ import annotations

from typing import Final

_MESSAGES = {
    "confluent/meta": """
        import "google/protobuf/descriptor.proto";
        message Meta {
          string doc = 1;
          map<string, string> params = 2;
          repeated string tags = 3;
          repeated Rule rules = 4;
        }
        message Rule { string name = 1; string doc = 2; string expr = 3; string sql = 4; }
        extend google.protobuf.FileOptions { Meta file_meta = 1088; }
        extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
        extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
        extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
    """,
    "confluent/type/decimal": """
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
    """,
    "confluent/type/variant": "message Variant { bytes metadata = 1; bytes value = 2; }",
    "google/type/calendar_period": """
        enum CalendarPeriod {
          CALENDAR_PERIOD_UNSPECIFIED = 0;
          DAY = 1; WEEK = 2; FORTNIGHT = 3; MONTH = 4; QUARTER = 5; HALF = 6; YEAR = 7;
        }
    """,
    "google/type/color": """
        import "google/protobuf/wrappers.proto";
        message Color {
          float red = 1; float green = 2; float blue = 3; google.protobuf.FloatValue alpha = 4;
        }
    """,
    "google/type/date": "message Date { int32 year = 1; int32 month = 2; int32 day = 3; }",
    "google/type/datetime": """
        import "google/protobuf/duration.proto";
        message DateTime {
          int32 year = 1; int32 month = 2; int32 day = 3;
          int32 hours = 4; int32 minutes = 5; int32 seconds = 6; int32 nanos = 7;
          oneof time_offset { google.protobuf.Duration utc_offset = 8; TimeZone time_zone = 9; }
        }
        message TimeZone { string id = 1; string version = 2; }
    """,
    "google/type/dayofweek": """
        enum DayOfWeek {
          DAY_OF_WEEK_UNSPECIFIED = 0; MONDAY = 1; TUESDAY = 2; WEDNESDAY = 3; THURSDAY = 4;
          FRIDAY = 5; SATURDAY = 6; SUNDAY = 7;
        }
    """,
    "google/type/decimal": "message Decimal { string value = 1; }",
    "google/type/expr": """
        message Expr {
          string expression = 1; string title = 2; string description = 3; string location = 4;
        }
    """,
    "google/type/fraction": "message Fraction { int64 numerator = 1; int64 denominator = 2; }",
    "google/type/interval": """
        import "google/protobuf/timestamp.proto";
        message Interval {
          google.protobuf.Timestamp start_time = 1; google.protobuf.Timestamp end_time = 2;
        }
    """,
    "google/type/latlng": "message LatLng { double latitude = 1; double longitude = 2; }",
    "google/type/money": """
        message Money { string currency_code = 1; int64 units = 2; int32 nanos = 3; }
    """,
    "google/type/month": """
        enum Month {
          MONTH_UNSPECIFIED = 0; JANUARY = 1; FEBRUARY = 2; MARCH = 3; APRIL = 4; MAY = 5; JUNE = 6;
          JULY = 7; AUGUST = 8; SEPTEMBER = 9; OCTOBER = 10; NOVEMBER = 11; DECEMBER = 12;
        }
    """,
    "google/type/phone_number": """
        message PhoneNumber {
          message ShortCode { string region_code = 1; string number = 2; }
          oneof kind { string e164_number = 1; ShortCode short_code = 2; }
          string extension = 3;
        }
    """,
    "google/type/postal_address": """
        message PostalAddress {
          int32 revision = 1; string region_code = 2; string language_code = 3;
          string postal_code = 4; string sorting_code = 5; string administrative_area = 6;
          string locality = 7; string sublocality = 8; repeated string address_lines = 9;
          repeated string recipients = 10; string organization = 11;
        }
    """,
    "google/type/quaternion": """
        message Quaternion { double x = 1; double y = 2; double z = 3; double w = 4; }
    """,
    "google/type/timeofday": """
        message TimeOfDay {
          int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4;
        }
    """,
}
# File name to text.
KNOWN_PROTOS: Final = {
    f"{name}.proto": f'syntax = "proto3"; package {package};{body}'
    for name, body in _MESSAGES.items()
    for package in [name.rpartition("/")[0].replace("/", ".")]
}
