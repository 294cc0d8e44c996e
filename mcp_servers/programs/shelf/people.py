"""Services of personnel and money. `descriptions.py` explains their format."""

DESCRIPTIONS = """
service vacancies | Positions for which somebody is sought.
record vacancy VC title
title mix(Senior|Junior|Lead|Interim, accountant|welder|designer|nurse|analyst) | Name of the position.
manager person | Who decides.
salary money(24000..90000) | Yearly pay in euros.
city city | Where the work is.
states open filled withdrawn
find_vacancy find | Look an open position up by its title.
get_vacancy get | Manager, pay and place of one position.
list_vacancies list city | Positions, all or of one city.
publish_vacancy create title,manager,salary,city | Advertise a new position.
set_vacancy_salary set salary | Change the yearly pay that is offered for a position.
relocate_vacancy set city | Offer a position in another city.
fill_vacancy move open filled | Note that somebody was found for a position.
withdraw_vacancy move open withdrawn | Stop looking for somebody.

service applicants | People who have applied for a job.
record application AP candidate
candidate person | Who has applied.
position mix(Senior|Junior|Lead, accountant|welder|designer|nurse) | What for.
interview day | When they talk with us.
rating int(1..10) | Points after the interview, 10 is best.
recruiter person | Who is in touch with them.
states received invited hired rejected
find_application find | Look an application up by the candidate's name.
get_application get | Position, interview, points and recruiter of one application.
list_applications list position | Applications, all or for one position.
schedule_interview set interview | Fix the day on which a candidate is interviewed.
rate_candidate set rating | Give a candidate points after the interview.
hand_over_application set recruiter | Let another recruiter stay in touch with a candidate.
invite_candidate move received invited | Ask a candidate to come for a talk.
hire_candidate move invited hired | Accept a candidate.
reject_candidate move received,invited rejected | Turn a candidate down.

service leave | Requests for days off.
record leave_request LV employee
employee person | Who wants to be away.
first_day day | First day off.
days int(1..20) | Number of working days.
substitute person | Who does the work meanwhile.
states requested approved denied
find_leave_request find | Look a request for days off up by the employee's name.
get_leave_request get | First day, length and substitute of one request for days off.
list_leave_requests list substitute | Requests for days off, all or those somebody stands in for.
request_leave create employee,first_day,days,substitute | Ask for days off in somebody's name.
shift_leave set first_day | Let a holiday begin on another day.
change_leave_length set days | Make a holiday shorter or longer.
name_substitute set substitute | Say who stands in during a holiday.
approve_leave move requested approved | Grant the days off.
deny_leave move requested denied | Refuse the days off.

service trainings | Courses that employees are sent to.
record training TR title
title mix(First aid|Fire safety|Negotiation|Welding|Spreadsheet, basics|refresher|masterclass) | Name of the course.
trainer person | Who teaches.
seats int(4..30) | Places in the course.
price money(50..900) | Euros for each participant.
starts day | First day.
states open full over
find_training find | Look a staff course up by its title.
get_training get | Trainer, places, price and start of one staff course.
list_trainings list trainer | Staff courses, all or by one trainer.
offer_training create title,trainer,seats,price,starts | Set a new course for employees up.
replace_trainer set trainer | Have somebody else teach a staff course.
set_training_seats set seats | Change the number of places in a staff course.
move_training_start set starts | Begin a staff course on another day.
set_training_price set price | Change what a participant of a staff course costs.
close_training_registration move open full | Take no more participants for a staff course.

service payroll | What employees earn each month.
record payslip PY employee
employee person | Who is paid.
gross money(1800..7000) | Monthly pay before tax, in euros.
bonus money(0..900) | Extra pay of this month, in euros.
account code(IBAN) | Where it is sent to.
tax_class one(one|two|three) | By which tax is deducted.
states prepared paid held
find_payslip find | Look a pay slip up by the employee's name.
get_payslip get | Gross pay, bonus, account and tax class of one employee.
list_payslips list tax_class | Pay slips, all or of one tax class.
raise_salary set gross | Change an employee's monthly gross pay.
grant_bonus set bonus | Fix the extra pay of an employee for this month.
change_pay_account set account | Send an employee's money to another bank account.
set_tax_class set tax_class | Deduct tax from an employee by another class.
hold_payment move prepared held | Stop the money of an employee before it is sent.
release_payment move prepared,held paid | Send an employee the money.

service expenses | Receipts that employees want to be paid back.
record receipt EX receipt_number
receipt_number code(RCP) | Number of the receipt.
employee person | Who has paid.
amount money(5..900) | In euros.
purpose one(meals|train|hotel|taxi|tools) | What it was spent on.
day day | When it was spent.
states submitted reimbursed refused
find_receipt find | Look a submitted receipt up by its number.
get_receipt get | Employee, amount, purpose and day of one receipt.
list_receipts list employee,purpose | Receipts by employee or purpose.
submit_receipt create receipt_number,employee,amount,purpose,day | Hand in what an employee has paid out of pocket.
correct_receipt_amount set amount | Mend the amount on a receipt.
reclassify_receipt set purpose | Say that the money of a receipt was spent on something else.
reimburse_receipt move submitted reimbursed | Pay an employee back.
refuse_receipt move submitted refused | Do not pay an employee back.

service trips | Business journeys.
record trip TP traveller
traveller person | Who goes.
destination city | Where to.
departure day | When.
nights int(1..9) | Nights in a hotel.
budget money(100..3000) | Euros at most.
states planned booked cancelled
find_trip find | Look a business journey up by who travels.
get_trip get | Destination, departure, nights and budget of one journey.
list_trips list destination | Journeys, all or to one city.
plan_trip create traveller,destination,departure,nights,budget | Prepare a new business journey.
change_destination set destination | Send a traveller to another city.
change_departure set departure | Let a traveller leave on another day.
extend_stay set nights | Change how many nights a traveller stays.
set_trip_budget set budget | Change how much a journey may cost at most.
book_trip move planned booked | Buy tickets and rooms for a journey.
cancel_trip move planned,booked cancelled | Call a journey off.

service invoices | What customers owe us.
record invoice IV number
number code(INV) | Invoice number.
customer mix(Acme|Globex|Initech|Hooli|Stark|Wayne, Ltd|Group|Labs) | Who has to pay.
amount money(40..9000) | In euros.
due day | When it must be paid.
clerk person | Who wrote it.
states sent reminded paid written_off
find_invoice find | Look an invoice up by its number.
get_invoice get | Customer, amount, due date and clerk of one invoice.
list_invoices list customer | Invoices, all or of one customer.
write_invoice create number,customer,amount,due,clerk | Bill a customer.
grant_respite set due | Give a customer more time to pay.
correct_invoice set amount | Change the sum of an invoice.
send_reminder move sent reminded | Remind a customer who has not paid.
record_payment move sent,reminded paid | Note that a customer has paid.
write_off_invoice move reminded written_off | Give up on money that a customer will never pay.

service payables | Bills of suppliers that we have to pay.
record bill BL bill_number
bill_number code(BIL) | Number on the bill.
vendor mix(Paper|Steel|Cable|Glass|Timber, World|Direct|Works) | Who wants money.
amount money(30..8000) | In euros.
approver person | Who has to agree.
pay_by day | When the money must be there.
states received approved disputed settled
find_bill find | Look a supplier's bill up by its number.
get_bill get | Vendor, amount, approver and date of one bill.
list_bills list vendor | Bills, all or of one vendor.
enter_bill create bill_number,vendor,amount,approver,pay_by | Enter a bill that has come in.
set_bill_approver set approver | Say who else has to agree to a bill.
schedule_bill set pay_by | Change by when a bill is paid.
approve_bill move received approved | Agree to a bill.
dispute_bill move received disputed | Object to a bill.
settle_bill move approved settled | Transfer the money for a bill.

service budgets | How much departments may spend.
record budget BG department
department mix(North|South|Export|Retail|Service, sales|support|research|logistics) | Whose money it is.
limit money(5000..90000) | Euros for the year.
spent money(0..4000) | Euros that are gone.
owner person | Who answers for it.
states open frozen
find_budget find | Look a department's budget up by its name.
get_budget get | Limit, spending and owner of one department's budget.
list_budgets list owner | Budgets, all or of one owner.
set_budget_limit set limit | Change how much a department may spend in the year.
book_spending add spent | Note that a department has spent more money.
transfer_budget_ownership set owner | Make somebody else answer for a department's money.
freeze_budget move open frozen | Allow a department no more spending.
unfreeze_budget move frozen open | Allow a department to spend again.
"""
