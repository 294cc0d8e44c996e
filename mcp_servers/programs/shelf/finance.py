"""Services of banking and of trade. `descriptions.py` explains their format."""

DESCRIPTIONS = """
service savings | Savings accounts of a small bank.
record account AC number
number code(SAV) | Account number.
holder person | Whose money it is.
balance money(0..9000) | In euros.
rate int(0..5) | Interest in per cent a year.
states open dormant closed
find_savings_account find | Look a savings account up by its number.
get_savings_account get | Holder, balance and interest of one savings account.
list_savings_accounts list holder | Savings accounts, all or of one holder.
open_savings_account create number,holder,balance,rate | Begin a new savings account.
deposit_savings add balance | Pay money into a savings account.
withdraw_savings take balance | Take money out of a savings account.
set_interest_rate set rate | Give a savings account another interest.
close_savings_account move open,dormant closed | End a savings account.

service loans | Money that was lent to people.
record loan LN reference
reference code(LOA) | Reference of the loan.
borrower person | Who has to pay back.
principal money(1000..50000) | Euros that were lent.
months int(6..60) | Number of instalments.
guarantor person | Who pays if the borrower does not.
states applied granted repaid defaulted
find_loan find | Look a loan up by its reference.
get_loan get | Borrower, sum, instalments and guarantor of one loan.
list_loans list borrower | Loans, all or of one borrower.
apply_for_loan create reference,borrower,principal,months,guarantor | Enter somebody's wish to borrow money.
reschedule_loan set months | Spread a loan over another number of instalments.
change_guarantor set guarantor | Have somebody else vouch for a loan.
grant_loan move applied granted | Lend the money.
mark_loan_repaid move granted repaid | Note that a loan was paid back in full.
mark_loan_defaulted move granted defaulted | Note that a borrower does not pay any more.

service cards | Credit cards and what they may be used for.
record card CD ending
ending code(CRD) | Short number of the card.
cardholder person | Who carries it.
limit money(500..9000) | Euros a month at most.
abroad one(allowed|refused) | Payments in other countries.
states working blocked expired
find_card find | Look a credit card up by its short number.
get_card get | Cardholder, limit and rules of one credit card.
list_cards list abroad | Credit cards, all or those that work in other countries.
set_card_limit set limit | Change how much a card may spend a month.
allow_abroad set abroad | Say whether a card may pay in other countries.
block_card move working blocked | Stop all payments with a card at once.
unblock_card move blocked working | Let a stopped card pay again.
pass_card_on set cardholder | Give a company card to another employee.

service claims | Damage that insured people have reported.
record claim CL number
number code(CLM) | Claim number.
insured person | Who reports the damage.
damage one(water|fire|theft|glass|storm) | What has happened.
sum money(50..9000) | Euros that are asked for.
adjuster person | Who looks into it.
states reported accepted declined paid_out
find_claim find | Look an insurance claim up by its number.
get_claim get | Insured, damage, sum and adjuster of one claim.
list_claims list damage | Claims, all or of one kind of damage.
report_damage create number,insured,damage,sum,adjuster | Open a claim for damage that somebody has suffered.
assign_adjuster set adjuster | Let somebody else look into a claim.
reassess_claim set sum | Correct how much money a claim is about.
accept_claim move reported accepted | Agree that the insurance covers a claim.
decline_claim move reported declined | Refuse to cover a claim.
pay_out_claim move accepted paid_out | Transfer the money of an accepted claim.

service donations | Gifts to a charity.
record donation DN receipt
receipt code(DON) | Number of the thank-you receipt.
donor person | Who gives.
amount money(5..2000) | In euros.
campaign one(schools|wells|forest|shelter) | What it is for.
states pledged received refunded
find_donation find | Look a gift to the charity up by its receipt.
get_donation get | Donor, amount and campaign of one gift.
list_donations list campaign | Gifts, all or for one campaign.
pledge_donation create receipt,donor,amount,campaign | Note that somebody promises money to the charity.
redirect_donation set campaign | Use a gift for another campaign.
correct_donation set amount | Change the sum of a gift.
confirm_donation move pledged received | Note that promised money has come.
refund_donation move received refunded | Give a donor the money back.

service leads | People who may become customers.
record lead LD contact
contact person | Whom we talk to.
company mix(Oak|River|Summit|Harbor|Meadow, Foods|Motors|Media|Tools) | Where the contact works.
seller person | Who talks to them.
worth money(500..40000) | Euros we hope for.
source one(fair|website|phone|referral) | How we met.
states new contacted won lost
find_lead find | Look a sales contact up by name.
get_lead get | Company, seller, worth and source of one sales contact.
list_leads list seller,source | Sales contacts by seller or source.
capture_lead create contact,company,seller,worth,source | Enter somebody who may become a customer.
assign_seller set seller | Let another salesperson talk to a contact.
revalue_lead set worth | Change how many euros we hope for from a contact.
mark_contacted move new contacted | Note that a contact was called for the first time.
win_lead move contacted won | Note that a contact became a customer.
lose_lead move new,contacted lost | Note that a contact bought elsewhere.

service quotes | Offers with a price that customers can accept.
record quote QT reference
reference code(QUO) | Number of the offer.
client mix(Oak|River|Summit|Harbor|Meadow, Foods|Motors|Media|Tools) | Who gets the offer.
price money(100..20000) | In euros.
discount int(0..30) | Per cent off.
valid_until day | Until when the price holds.
states draft sent accepted expired
find_quote find | Look an offer up by its number.
get_quote get | Client, price, discount and validity of one offer.
list_quotes list client | Offers, all or to one client.
prepare_quote create reference,client,price,discount,valid_until | Write a new offer to a client.
give_discount set discount | Take another share off the price of an offer.
reprice_quote set price | Put another price into an offer.
extend_quote set valid_until | Let the price of an offer hold longer.
send_quote move draft sent | Mail an offer to the client.
accept_quote move sent accepted | Note that the client has agreed to an offer.

service purchases | Orders that we place with suppliers.
record purchase_order PO number
number code(POR) | Order number.
supplier mix(Paper|Steel|Cable|Glass|Timber, World|Direct|Works) | Who delivers.
goods mix(copper|oak|safety|spare, sheets|planks|gloves|bolts) | What is ordered.
pieces int(1..500) | How many.
buyer person | Who has ordered.
states requested ordered delivered rejected
find_purchase_order find | Look an order to a supplier up by its number.
get_purchase_order get | Supplier, goods, pieces and buyer of one order.
list_purchase_orders list supplier | Orders, all or with one supplier.
request_purchase create number,supplier,goods,pieces,buyer | Ask for goods to be ordered from a supplier.
change_order_quantity set pieces | Order more or fewer pieces.
place_purchase_order move requested ordered | Send an order to the supplier.
receive_goods move ordered delivered | Note that ordered goods have come.
reject_purchase move requested rejected | Do not order what somebody has asked for.

service vendors | Firms that we buy from and how good they are.
record vendor VN name
name mix(Alpha|Delta|Omega|Sigma|Kappa, Metals|Plastics|Textiles|Chemicals) | Name of the firm.
contact person | Whom to call.
score int(1..100) | Points for quality.
terms_days int(7..90) | Days until we have to pay.
city city | Where it sits.
states approved probation banned
find_vendor find | Look a firm that we buy from up by its name.
get_vendor get | Contact, quality points, payment terms and place of one firm.
list_vendors list city | Firms that we buy from, all or of one city.
onboard_vendor create name,contact,score,terms_days,city | Start to buy from a new firm.
score_vendor set score | Give a firm other quality points after an audit.
change_payment_terms set terms_days | Agree on other days to pay with a firm.
change_vendor_contact set contact | Note whom to call at a firm from now on.
put_on_probation move approved probation | Watch a firm that has delivered badly.
ban_vendor move approved,probation banned | Buy nothing from a firm any more.

service stock | Goods on the shelves of the warehouse.
record product PR name
name mix(oak|steel|glass|linen|copper, lamp|table|vase|curtain|kettle) | Name of the product.
quantity int(0..300) | Pieces there.
aisle code(AIS) | Where they lie.
reorder_at int(5..60) | Below this number more are ordered.
states sold paused
find_product_stock find | Look a product in the warehouse up by name.
get_product_stock get | Quantity, aisle and reorder point of one product.
list_product_stock list aisle | Products in the warehouse, all or of one aisle.
pick_product take quantity | Take pieces of a product off the shelf for an order.
put_away_product add quantity | Put pieces of a product that have come onto the shelf.
relocate_product set aisle | Keep a product in another aisle.
set_reorder_point set reorder_at | Change below what number a product is ordered again.
pause_product move sold paused | Stop selling a product for a while.
resume_product move paused sold | Sell a product again.

service returns | Goods that customers send back.
record return_case RT number
number code(RMA) | Number of the return.
customer person | Who sends it back.
reason one(broken|wrong|late|unwanted) | Why.
value money(5..600) | Euros that were paid for it.
inspector person | Who looks at it.
states announced arrived refunded refused
find_return find | Look a return up by its number.
get_return get | Customer, reason, value and inspector of one return.
list_returns list reason | Returns, all or for one reason.
announce_return create number,customer,reason,value,inspector | Note that a customer will send something back.
set_return_reason set reason | Correct why a customer sends something back.
assign_inspector set inspector | Have somebody else look at returned goods.
register_arrival move announced arrived | Note that returned goods have reached us.
refund_return move arrived refunded | Pay a customer the money for returned goods.
refuse_return move arrived refused | Send returned goods back without money.
"""
