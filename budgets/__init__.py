"""The matched-compute protocol: what was spent, on what, and how runs compare."""

from budgets.ledger import Budget as Budget
from budgets.ledger import Charge as Charge
from budgets.ledger import Cost as Cost
from budgets.ledger import Ledger as Ledger
from budgets.ledger import Phase as Phase

__all__ = ["Budget", "Charge", "Cost", "Ledger", "Phase"]
