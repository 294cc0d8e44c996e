"""Wordings for the services of an office, its staff and its money; `wordings.py` explains the format."""

WORDINGS = """
= rooms | the meeting room {name}
? caretaker | the person who looks after {it}
? seats | the number of seats in {it}
! set_room_seating | furnish {it} with {seats} chairs
! appoint_room_caretaker | let {caretaker} be responsible for {it} from now on
! fit_room_screen | have slides in {it} shown on this: {screen}

= visitors | the visit of {guest}
? host | the employee who receives {guest}
? day | the day on which {guest} comes to see us
! change_visit_host | have {guest} received by {host} instead
! postpone_visit | let {guest} come on {day} instead
! announce_visitor | tell the reception that {guest} from {company} comes to see {host} on {day}

= parking | the parking place {bay}
? holder | the person who may park on {bay}
? fee | the monthly rent of {it}
! change_parking_fee | ask {fee} euros a month for {it} from now on
! rent_out_parking_space | let {holder} have {it}, for the car {plate}

= badges | the access badge {number}
? owner | the person who carries {it}
? expires | the last day on which {it} opens doors
! extend_badge | let {it} work until {expires}
! change_badge_zone | let {it} open these doors: {zone}
! revoke_badge | withdraw {it} for good

= mailroom | the piece of mail {tracking}
? recipient | the employee to whom {it} is addressed
? shelf | the number of the shelf on which {it} lies
! readdress_mail | note that {it} is really meant for {recipient}
! move_mail_item | lay {it} on shelf {shelf}
! return_mail_to_sender | have {it} go back to where it came from

= stationery | the {name} in the cupboard with office articles
? stock | the number of pieces of {it}
! restock_stationery | note that {amount} more pieces of {it} were delivered
! set_stationery_minimum | see to it that {it} are ordered again below {minimum} pieces
! discontinue_stationery | stop keeping {it}

= desks | the shared desk {label}
? floor | the storey of {it}
? user | the person who sits at {it}
! reserve_desk | keep {it} for {user}
! equip_desk | note that {it} is now of this kind: {equipment}
! report_broken_desk | say that nobody can work at {it}

= agenda | the meeting "{topic}"
? chair | the person who leads {it}
? day | the day of {it}
? city | the city where {it} takes place
! reschedule_meeting | hold {it} on {day}
! change_meeting_chair | have {it} led by {chair}
! set_meeting_length | plan {minutes_long} minutes for {it}
! cancel_meeting | call {it} off

= actions | the task "{title}" from the minutes
? assignee | the person who has to do {it}
? due | the day by which {it} must be finished
! reassign_action | let {assignee} do {it}
! set_action_deadline | ask for {it} by {due}
! complete_action | tick {it} off

= contracts | the agreement {reference}
? lawyer | the person who keeps {it}
? ends | the day on which {it} runs out
? value | the yearly worth of {it}
! prolong_contract | let {it} run until {ends}
! assign_lawyer | have {it} kept by {lawyer}
! renegotiate_contract | note that {it} is now worth {value} euros a year

= archive | the box {label} with old papers
? destroy_on | the day on which {it} may be shredded
? aisle | the number of the aisle of {it}
! move_box | carry {it} to aisle {aisle}
! keep_box_longer | see to it that {it} is shredded on {destroy_on} and not before

= vacancies | the position of {title}
? manager | the person who decides about {it}
? city | the city of {it}
? salary | the yearly pay offered for {it}
! set_vacancy_salary | offer {salary} euros a year for {it}
! relocate_vacancy | look for somebody for {it} in {city} instead
! withdraw_vacancy | give up looking for somebody for {it}

= applicants | the application of {candidate}
? recruiter | the person who is in touch with the candidate {candidate}
? interview | the day on which the candidate {candidate} is interviewed
? rating | the points that the candidate {candidate} has got
! schedule_interview | talk with the candidate {candidate} on {interview}
! hand_over_application | let {recruiter} stay in touch with the candidate {candidate}
! reject_candidate | turn the candidate {candidate} down

= leave | the days off that {employee} has asked for
? substitute | the person who stands in for {employee}
? first_day | the first day off of {employee}
! shift_leave | let the holiday of {employee} begin on {first_day}
! name_substitute | have {substitute} stand in for {employee}
! deny_leave | refuse {it}

= trainings | the staff course "{title}"
? trainer | the person who teaches {it}
? starts | the first day of {it}
? price | the price of {it} for each participant
! replace_trainer | have {trainer} teach {it}
! move_training_start | begin {it} on {starts}
! set_training_price | charge {price} euros for {it}

= payroll | the pay of {employee}
? bonus | the extra pay of {employee} this month
? gross | the gross monthly pay of {employee}
! grant_bonus | pay {employee} {bonus} euros extra this month
! raise_salary | pay {employee} {gross} euros a month before tax
! hold_payment | do not send {employee} this month's money yet

= expenses | the receipt {receipt_number}
? employee | the person who handed in {it}
? amount | the sum on {it}
? day | the date on {it}
! correct_receipt_amount | mend the sum on {it}: it is {amount} euros
! refuse_receipt | do not pay {it} back
! submit_receipt | hand in for {employee} paper {receipt_number} over {amount} euros, spent on {purpose} on {day}

= trips | the business journey of {traveller}
? destination | the city to which {traveller} travels
? departure | the day on which {traveller} leaves
? budget | the sum that the journey of {traveller} may cost
! change_destination | send {traveller} to {destination} instead
! change_departure | let {traveller} leave on {departure}
! set_trip_budget | let the journey of {traveller} cost {budget} euros at most

= invoices | the bill {number} to a customer
? clerk | the person who wrote {it}
? due | the day on which {it} must be paid
? amount | the sum of {it}
! grant_respite | give the customer time until {due} for {it}
! correct_invoice | put {amount} euros as the sum of {it}
! send_reminder | remind the customer of {it}
! write_invoice | bill {customer} {amount} euros under the number {number}, due {due}, in the name of {clerk}

= payables | the bill {bill_number} from a supplier
? approver | the person who has to agree to {it}
? pay_by | the day on which the money for {it} must be there
? amount | the sum that {it} asks for
! set_bill_approver | have {approver} agree to {it} instead
! schedule_bill | see to it that {it} is paid by {pay_by}
! dispute_bill | object to {it}

= budgets | the money of {department}
? owner | the person who answers for {it}
? limit | the sum that {department} may spend this year
? spent | the sum that {department} has spent
! set_budget_limit | allow {department} {limit} euros this year
! book_spending | note that {department} has spent another {amount} euros
! transfer_budget_ownership | make {owner} answer for {it}
! freeze_budget | do not let {department} spend anything more

= savings | the savings account {number}
? holder | the person to whom {it} belongs
? balance | the money on {it}
! deposit_savings | pay {amount} euros into {it}
! set_interest_rate | give {it} {rate} per cent interest
! close_savings_account | end {it}

= loans | the loan {reference}
? borrower | the person who has to pay {it} back
? guarantor | the person who vouches for {it}
? principal | the sum of {it}
! reschedule_loan | spread {it} over {months} instalments
! change_guarantor | have {guarantor} vouch for {it}

= cards | the credit card {ending}
? cardholder | the person who carries {it}
? limit | the sum that {it} may spend in a month
! set_card_limit | let {it} spend {limit} euros a month
! pass_card_on | give {it} to {cardholder}
! block_card | stop all payments with {it}

= claims | the insurance case {number}
? insured | the person who has reported the damage in {it}
? adjuster | the person who looks into {it}
? sum | the sum that is asked for in {it}
! assign_adjuster | have {adjuster} look into {it}
! reassess_claim | note that {it} is about {sum} euros
! decline_claim | refuse to cover {it}

= donations | the gift {receipt} to the charity
? donor | the person who made {it}
? amount | the sum of {it}
! redirect_donation | use {it} for this instead: {campaign}
! correct_donation | note that {it} is {amount} euros

= leads | the sales contact {contact}
? seller | the salesperson who talks to {contact}
? worth | the sum that we hope for from {contact}
! assign_seller | let {seller} talk to {contact} in future
! revalue_lead | hope for {worth} euros from {contact}
! lose_lead | note that {contact} bought elsewhere

= quotes | the offer {reference}
? valid_until | the last day on which the price of {it} holds
? price | the price in {it}
! give_discount | take {discount} per cent off {it}
! reprice_quote | put {price} euros into {it}
! extend_quote | let {it} hold until {valid_until}

= purchases | the order {number} to a supplier
? buyer | the person who placed {it}
? pieces | the number of pieces in {it}
! change_order_quantity | order {pieces} pieces with {it}
! reject_purchase | do not send {it} at all

= vendors | our supplier {name}
? contact | the person to call at {it}
? city | the city where {it} sits
? score | the quality points of {it}
! score_vendor | give {it} {score} points for quality
! change_payment_terms | agree with {it} on {terms_days} days to pay
! change_vendor_contact | note that at {it} one calls {contact}
! ban_vendor | buy nothing from {it} any more

= stock | the product "{name}" in the warehouse
? quantity | the number of pieces of {it}
! put_away_product | note that {amount} more pieces of {it} lie on the shelf
! set_reorder_point | see to it that {it} is ordered again below {reorder_at} pieces
! pause_product | stop selling {it} for a while

= returns | the goods sent back under {number}
? customer | the person who sent back {number}
? inspector | the person who looks at {it}
? value | the sum that was paid for {it}
! assign_inspector | have {inspector} look at {it}
! set_return_reason | correct why {it} came back: {reason}
"""
