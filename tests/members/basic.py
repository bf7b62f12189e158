"""No encoding at all."""

from members.member import Member, both

MEMBERS = {"none": Member(both("none()"))}
