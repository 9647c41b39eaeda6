"""What the tables of a manifest have in common: strict, frozen, and no key that nobody reads."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Size = Annotated[int, Field(ge=1, le=1 << 24)]  # of no model a dimension is larger; memory is made ready by these
FileName = Annotated[str, Field(pattern="^[A-Za-z0-9_][A-Za-z0-9._-]*$", max_length=255)]  # never a path


class Table(BaseModel):
    """One table of a manifest."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")
