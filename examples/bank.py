"""A whole environment in one file. Try: gymcp check examples/bank.py"""

from gymcp import GoldTurn, Suite, Task, ToolCall
from gymcp.envs import EnvSpec
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers import ToolError, native_server


class Bank:
    """The server: public methods are its tools, public attributes its state. Only this class enters the sandbox."""

    def __init__(self, accounts: dict[str, int]) -> None:
        self.accounts = accounts

    def balance(self, owner: str) -> int:
        """How much money an account holds, in euros."""
        return self.accounts[owner]

    def transfer(self, source: str, target: str, amount: int) -> str:
        """Move euros from one account to another."""
        if not 0 < amount <= self.accounts[source]:
            raise ToolError(f"{source} cannot pay {amount}: the balance is {self.accounts[source]}")
        self.accounts[source] -= amount
        self.accounts[target] += amount
        return "done"


def pay_back(debt: int) -> Task:
    """Ann owes Bob `debt` euros."""
    pay = ToolCall(id="call_1", name="transfer", arguments={"source": "ann", "target": "bob", "amount": debt})
    return Task(
        id=f"pay_back_{debt}",
        prompts=(f"I am Ann. Pay Bob the {debt} euros that I owe him.",),
        initial_state={"accounts": {"ann": 100, "bob": 20}},
        target={"accounts": {"ann": 100 - debt, "bob": 20 + debt}},
        gold=(GoldTurn(calls=(pay,), final_text="Bob has his money."),),
        last_necessary=(0, 0),
    )


ENV = EnvSpec(
    name="bank",
    description="Two accounts and one debt.",
    servers=(native_server("bank", Bank),),
    suite=Suite(name="bank", version="1", tasks=tuple(pay_back(debt) for debt in (5, 30, 100))),
    grade=final_state_equals(),
)
