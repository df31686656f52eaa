"""Provider of constant intensities: name, region of a configured value, and year of the table of
countries.
"""

PROVIDER = "static"
CUSTOM_REGION = "custom"
"""Region of an intensity that was configured; the other regions are countries of the table."""
TABLE_YEAR = 2021
"""Year of all means in exporter/wattline_exporter/sensors/carbon/countries.csv."""
